from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('environments', '0002_disks'),
    ]

    operations = [
        migrations.AddField(
            model_name='environment',
            name='has_secrets',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
