from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('manifests', '0002_artifacts'),
    ]

    operations = [
        migrations.AddField(
            model_name='artifactversion',
            name='damaged',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
