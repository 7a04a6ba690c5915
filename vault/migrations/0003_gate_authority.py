from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('vault', '0002_secrets'),
    ]

    operations = [
        migrations.CreateModel(
            name='GateAuthority',
            fields=[
                ('only', models.BooleanField(default=True, primary_key=True, serialize=False)),
                ('certificate', models.TextField()),
                ('sealed_key', models.BinaryField()),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'vault_gate_authority',
                'constraints': [models.CheckConstraint(condition=models.Q(('only', True)), name='gate_authority_is_one')],
            },
        ),
    ]
